"""The convolutional network of `convnet_keras.py`, as a loop in TensorFlow."""

from __future__ import annotations

import setting
import tensorflow as tf

model = tf.keras.Sequential(
    [
        tf.keras.Input((6, 6, 2)),
        tf.keras.layers.Conv2D(3, 3, name="conv"),
        tf.keras.layers.BatchNormalization(epsilon=1e-3, name="norm"),
        tf.keras.layers.Activation("tanh"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(setting.CLASSES, name="out"),
    ]
)
for name in ("conv", "out"):
    layer = model.get_layer(name)
    kernel, bias = layer.weights
    shapes = {"weight": kernel.shape, "bias": bias.shape}
    layer.set_weights([setting.array(f"{name}.{which}", *shape, scale=0.3) for which, shape in shapes.items()])
optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)


@tf.function
def train(images: tf.Tensor, labels: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    grads = tape.gradient(loss, model.trainable_variables)
    grads, _ = tf.clip_by_global_norm(grads, 0.8)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))


for step in range(setting.STEPS):
    batch = slice(step * setting.ROWS, (step + 1) * setting.ROWS)
    train(tf.constant(setting.IMAGES[batch]), tf.constant(setting.LABELS[batch]))
