#: rule = "global_norm"
#: threshold = 1.0
#: family = "tensorflow"
import tensorflow as tf

weights = [tf.Variable(tf.ones([4, 8])), tf.Variable(tf.ones([8, 1]))]
optimizer = tf.keras.optimizers.SGD(0.1, global_clipnorm=1.0)
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(tf.ones([8, 4]) @ weights[0] @ weights[1]))
    gradients = tape.gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, weights))
