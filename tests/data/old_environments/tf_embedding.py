# tensorflow-1.15.5: 4 clips, 2 steps, 0 warnings
# Sparse gradients with repeated rows, by the total norm and each.
import tensorflow as tf

rows = tf.placeholder(tf.int32, [None])
table = tf.get_variable("table", initializer=tf.ones([5, 2]))
optimizer = tf.train.AdamOptimizer(0.1)
(gradient,) = tf.gradients(tf.reduce_sum(tf.nn.embedding_lookup(table, rows) ** 2), [table])
(clipped,), _ = tf.clip_by_global_norm([tf.clip_by_norm(gradient, 2.0)], 1.0)
train = optimizer.apply_gradients([(clipped, table)])
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(2):
        session.run(train, {rows: [1, 1, 3]})
    print(session.run(table))
