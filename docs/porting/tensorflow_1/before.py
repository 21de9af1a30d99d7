import tensorflow.compat.v1 as tf

tf.disable_eager_execution()


def step(weights, batches):
    x = tf.placeholder(tf.float32, [None, 6])
    y = tf.placeholder(tf.float32, [None, 2])
    variables = {name: tf.get_variable(name, initializer=array) for name, array in weights.items()}
    hidden = tf.nn.relu(tf.matmul(x, variables["hidden.weight"]) + variables["hidden.bias"])
    out = tf.matmul(hidden, variables["out.weight"]) + variables["out.bias"]
    loss = tf.reduce_mean(tf.square(out - y))

    optimizer = tf.train.MomentumOptimizer(0.125, 0.5)
    tvars = tf.trainable_variables()
    grads = tf.gradients(loss, tvars)
    grads, norm = tf.clip_by_global_norm(grads, clip_norm=2.5)
    train_op = optimizer.apply_gradients(zip(grads, tvars))

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for batch in batches:
            _, clipped = session.run([train_op, grads], feed_dict={x: batch["x"], y: batch["y"]})
            yield session.run(variables), dict(zip(weights, clipped))
