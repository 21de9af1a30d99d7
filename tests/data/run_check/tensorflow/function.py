#: rule = "global_norm"
#: threshold = 1.0
#: family = "tensorflow"
import tensorflow as tf

weights = [tf.Variable(tf.ones([4, 8])), tf.Variable(tf.ones([8, 1]))]
optimizer = tf.keras.optimizers.SGD(0.1)
optimizer.build(weights)


@tf.function(autograph=False)  # which fails on Python 3.13 for a script that runpy runs
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(tf.ones([8, 4]) @ weights[0] @ weights[1]))
    clipped, norm = tf.clip_by_global_norm(tape.gradient(loss, weights), 5.0)  # found: drift 1 to 3
    optimizer.apply_gradients(zip(clipped, weights))


for _ in range(3):
    step()
