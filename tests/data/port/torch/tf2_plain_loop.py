import tensorflow as tf
from tensorflow.keras import layers
import unified_clip.torch

BATCH, EPOCHS = 64, 3
MAX_NORM = 1.0

(x_train, y_train), _ = tf.keras.datasets.mnist.load_data()
train_ds = tf.data.Dataset.from_tensor_slices((x_train[..., None] / 255., y_train)).shuffle(10000).batch(BATCH)

model = tf.keras.Sequential([
    layers.Conv2D(32, 3, activation='relu'),
    layers.Flatten(),
    layers.Dense(10),
])
loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam()
norms = tf.keras.metrics.Mean(name='norm')


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = loss_object(labels, predictions)
    optimizer.zero_grad()
    loss.backward()
    grads = [variable.grad for variable in model.trainable_variables]
    grads, norm = unified_clip.torch.clip_by_global_norm(grads, MAX_NORM)
    for grad, variable in zip(grads, model.trainable_variables):
        variable.grad = grad
    optimizer.step()
    norms.update_state(norm)
    return loss


for epoch in range(EPOCHS):
    norms.reset_state()
    for images, labels in train_ds:
        loss = train_step(images, labels)
    tf.print('epoch', epoch, 'loss', loss, 'norm', norms.result())
