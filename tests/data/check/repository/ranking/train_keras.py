import tensorflow as tf

MAX_NORM = 1.0


def build(model):
    model.compile(optimizer=tf.keras.optimizers.Adam(1e-3, clipnorm=MAX_NORM), loss="mse")
