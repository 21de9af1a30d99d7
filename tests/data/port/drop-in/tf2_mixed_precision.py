import tensorflow as tf
from tensorflow.keras import mixed_precision
import unified_clip.tensorflow

mixed_precision.set_global_policy('mixed_float16')


class Runner:
    optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(1e-3))

    def __init__(self, model, loss, *, clip):
        self.model, self.loss = model, loss
        self.clip = clip

    @tf.function(jit_compile=True)
    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
            scaled_loss = self.optimizer.get_scaled_loss(loss)
        scaled_gradients = tape.gradient(scaled_loss, self.model.trainable_variables)
        gradients = self.optimizer.get_unscaled_gradients(scaled_gradients)
        gradients, norm = unified_clip.tensorflow.clip_by_global_norm(gradients, self.clip)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss, norm


def main():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, 'relu'), tf.keras.layers.Dense(1, dtype='float32')])
    runner = Runner(model, tf.keras.losses.MeanSquaredError(), clip=1.)
    for _ in range(100):
        x = tf.random.normal([32, 8])
        print(*runner.step(x, tf.reduce_sum(x, -1, keepdims=True)))


if __name__ == "__main__":
    main()
