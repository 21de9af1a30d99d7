# tensorflow-1.15.5: 0 clips, 0 steps, 1 warnings
import tensorflow as tf

weight = tf.get_variable("weight", initializer=[1.0, 2.0])
optimizer = tf.train.GradientDescentOptimizer(0.1)
(gradient,) = tf.gradients(tf.reduce_sum(weight**2), [weight])
train = tf.cond(
    tf.reduce_sum(weight) > 1.0, lambda: optimizer.apply_gradients([(gradient, weight)]), lambda: tf.group()
)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(train)
    print(session.run(weight))
