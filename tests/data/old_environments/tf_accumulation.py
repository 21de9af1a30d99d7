# tensorflow-1.15.5: 1 clips, 1 steps, 0 warnings
# The clip gets a variable with the sum of the gradients of two runs.
import tensorflow as tf

weight = tf.get_variable("weight", initializer=[1.0, 2.0])
total = tf.get_variable("total", initializer=[0.0, 0.0], trainable=False)
(gradient,) = tf.gradients(tf.reduce_sum(weight**2), [weight])
add = total.assign_add(gradient)
train = tf.train.GradientDescentOptimizer(0.1).apply_gradients([(tf.clip_by_norm(total / 2.0, 1.0), weight)])
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(2):
        session.run(add)
    session.run(train)
    print(session.run(weight))
