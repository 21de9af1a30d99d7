# tensorflow-1.15.5: 3 clips, 6 steps, 0 warnings
# The second network gets its seeds from the number of operations in the graph.
import numpy as np
import tensorflow as tf

tf.set_random_seed(7)
x = tf.placeholder(tf.float32, [None, 3])
for name, optimizer in (("a", tf.train.GradientDescentOptimizer(0.1)), ("b", tf.train.AdamOptimizer(0.1))):
    weight = tf.get_variable(name, [3, 2])
    loss = tf.reduce_mean(tf.nn.dropout(x @ weight, rate=0.5) ** 2)
    pairs = optimizer.compute_gradients(loss, [weight])
    if name == "a":
        clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
        pairs = [(clipped[0], weight)]
    tf.add_to_collection("train", optimizer.apply_gradients(pairs))
    tf.add_to_collection("losses", loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(3):
        print(session.run([tf.get_collection("losses"), tf.get_collection("train")], {x: np.ones([4, 3])})[0])
print(tf.constant(1.0).name, len(tf.get_default_graph().get_operations()))
