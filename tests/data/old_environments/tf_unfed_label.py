# tensorflow-1.15.5: 0 clips, 1 steps, 0 warnings
# The gradient of a linear loss needs no label, so the run feeds none.
import tensorflow as tf

label = tf.placeholder(tf.float32, [])
weight = tf.get_variable("weight", initializer=[1.0, 2.0])
train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(weight) * 2.0 - label)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(train)
    print(session.run(weight))
