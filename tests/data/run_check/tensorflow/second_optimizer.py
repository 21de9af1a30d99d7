#: rule = "global_norm"
#: threshold = 1.0
#: family = "tensorflow"
import tensorflow as tf

actor, critic = tf.Variable(tf.ones([4, 1])), tf.Variable(tf.ones([4, 1]))
steps = [tf.keras.optimizers.Adam(), tf.keras.optimizers.Adam()]
for _ in range(3):
    with tf.GradientTape(persistent=True) as tape:
        losses = [tf.reduce_sum(tf.square(tf.ones([8, 4]) @ each)) for each in (actor, critic)]
    clipped, norm = tf.clip_by_global_norm([tape.gradient(losses[0], actor)], 1.0)
    steps[0].apply_gradients([(clipped[0], actor)])
    steps[1].apply_gradients([(tape.gradient(losses[1], critic), critic)])  # found: missing 1 to 3
