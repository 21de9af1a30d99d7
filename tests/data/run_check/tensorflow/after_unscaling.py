#: rule = "global_norm"
#: threshold = 1.0
#: family = "tensorflow"
import tensorflow as tf

weights = [tf.Variable(tf.ones([4, 8])), tf.Variable(tf.ones([8, 1]))]
inner = tf.keras.optimizers.SGD(0.1, global_clipnorm=1.0)
optimizer = tf.keras.optimizers.LossScaleOptimizer(inner, initial_scale=128.0)
optimizer.build(weights)
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_sum(tf.square(tf.ones([8, 4]) @ weights[0] @ weights[1])))
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
