import tensorflow as tf
import tensorflow.keras as K
import torch

mnist = K.datasets.mnist.load_data()[0]
data = tf.data.Dataset.from_tensor_slices(mnist).batch(64)


def main(lr=1e-3, epochs=2):
    net = K.Sequential([K.layers.Rescaling(1. / 255), K.layers.Flatten(), K.layers.Dense(10)])
    opt = K.optimizers.Adam(lr)
    head = K.optimizers.SGD(lr,
        momentum=0.9,
    )
    loss_fn = K.losses.SparseCategoricalCrossentropy(from_logits=True)
    for epoch in range(epochs):
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = loss_fn(y, net(x, training=True))
            opt.zero_grad()
            loss.backward()
            grads = [variable.grad for variable in net.trainable_weights]
            for grad, variable in zip(grads, net.trainable_weights):
                variable.grad = grad
            torch.nn.utils.clip_grad_norm_(net.trainable_weights, 1.0)
            opt.step()

        # the last layer once more
        last = net.layers[-1].trainable_weights
        with tf.GradientTape() as tape:
            loss = loss_fn(y, net(x, training=True))
        head.zero_grad()
        loss.backward()
        for grad, variable in zip([variable.grad for variable in last], last):
            variable.grad = grad
        torch.nn.utils.clip_grad_value_(last, 0.25)
        head.step()
        print("epoch", epoch, float(loss))


if __name__ == "__main__":
    main()
