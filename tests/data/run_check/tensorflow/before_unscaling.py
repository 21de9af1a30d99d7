#: rule = "global_norm"
#: threshold = 1.0
#: family = "tensorflow"
import tensorflow as tf

weights = [tf.Variable(tf.ones([4, 8])), tf.Variable(tf.ones([8, 1]))]
optimizer = tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1), initial_scale=128.0)
optimizer.build(weights)


@tf.function(autograph=False)
def step():
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_sum(tf.square(tf.ones([8, 4]) @ weights[0] @ weights[1])))
    gradients = tape.gradient(loss, weights)
    clipped, norm = tf.clip_by_global_norm(gradients, 1.0)  # found: drift 1 to 3
    optimizer.apply_gradients(zip(clipped, weights))


for _ in range(3):
    step()
