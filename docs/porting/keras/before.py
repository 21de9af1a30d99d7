import keras


def step(weights, batches):
    model = keras.Sequential(
        [keras.Input([6]), keras.layers.Dense(8, "relu", name="hidden"), keras.layers.Dense(2, name="out")]
    )
    model.set_weights(list(weights.values()))
    optimizer = keras.optimizers.SGD(0.125, momentum=0.5, clipnorm=1.5)
    model.compile(optimizer, loss=lambda y, out: keras.ops.mean(keras.ops.square(y - out), axis=-1))
    for batch in batches:
        model.train_on_batch(batch["x"], batch["y"])
        yield dict(zip(weights, model.get_weights())), None
