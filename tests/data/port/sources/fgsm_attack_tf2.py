import tensorflow as tf

pretrained = tf.keras.applications.MobileNetV2(include_top=True, weights='imagenet')
pretrained.trainable = False
loss_object = tf.keras.losses.CategoricalCrossentropy()


def adversarial_pattern(image, label):
    with tf.GradientTape() as tape:
        tape.watch(image)
        loss = loss_object(label, pretrained(image))
    return tf.sign(tape.gradient(loss, image))


def attack(image, label, eps=0.01):
    perturbation = adversarial_pattern(image, label)
    adv_x = image + eps * perturbation
    return tf.clip_by_value(adv_x, -1, 1)


def deepdream(img, model, steps=100, step_size=0.01):
    for _ in range(steps):
        with tf.GradientTape() as tape:
            tape.watch(img)
            loss = tf.reduce_mean(model(img))
        gradients = tape.gradient(loss, img)
        gradients /= tf.math.reduce_std(gradients) + 1e-8
        img = img + gradients * step_size
        img = tf.clip_by_value(img, -1, 1)
    return img


if __name__ == '__main__':
    raw = tf.io.read_file('labrador.jpg')
    image = tf.image.resize(tf.cast(tf.image.decode_image(raw), tf.float32), (224, 224)) / 127.5 - 1
    print(attack(image[None], tf.one_hot([208], 1000)).shape)