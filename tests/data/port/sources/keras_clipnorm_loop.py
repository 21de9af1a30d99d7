import tensorflow as tf
import tensorflow.keras as K

mnist = K.datasets.mnist.load_data()[0]
data = tf.data.Dataset.from_tensor_slices(mnist).batch(64)


def main(lr=1e-3, epochs=2):
    net = K.Sequential([K.layers.Rescaling(1. / 255), K.layers.Flatten(), K.layers.Dense(10)])
    opt = K.optimizers.Adam(lr, global_clipnorm=1.0)
    head = K.optimizers.SGD(lr,
        momentum=0.9,
        clipvalue=0.25,
    )
    loss_fn = K.losses.SparseCategoricalCrossentropy(from_logits=True)
    for epoch in range(epochs):
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = loss_fn(y, net(x, training=True))
            grads = tape.gradient(loss, net.trainable_weights)
            opt.apply_gradients(zip(grads, net.trainable_weights))

        # the last layer once more
        last = net.layers[-1].trainable_weights
        with tf.GradientTape() as tape:
            loss = loss_fn(y, net(x, training=True))
        head.apply_gradients(zip(tape.gradient(loss, last), last))
        print("epoch", epoch, float(loss))


if __name__ == "__main__":
    main()
