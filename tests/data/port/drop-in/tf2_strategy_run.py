import os

import tensorflow as tf
import unified_clip.tensorflow

strategy = tf.distribute.MirroredStrategy()
GLOBAL_BATCH = 32 * strategy.num_replicas_in_sync
CLIP = float(os.environ.get("CLIP", 1.0))


def build():
    return tf.keras.Sequential([tf.keras.layers.Dense(128, activation="gelu"), tf.keras.layers.Dense(1)])


with strategy.scope():
    model = build()
    opt = tf.keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)


def compute_loss(y, p):
    return tf.nn.compute_average_loss(tf.keras.losses.mse(y, p), global_batch_size=GLOBAL_BATCH)


@tf.function
def distributed_train_step(iterator):
    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            loss = compute_loss(y, model(x, training=True))
        grads = tape.gradient(loss, model.trainable_variables)
        # every replica clips its own; apply_gradients then adds them
        grads, _ = unified_clip.tensorflow.clip_by_global_norm(grads, CLIP)
        opt.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    per_replica = strategy.run(step_fn, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)


def main(dataset, steps):
    it = iter(strategy.experimental_distribute_dataset(dataset))
    for step in range(steps):
        loss = distributed_train_step(it)
        if step % 100 == 0:
            print(step, float(loss))
