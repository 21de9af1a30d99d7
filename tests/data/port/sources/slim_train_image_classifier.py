"""Trains a network with TF-Slim."""
import tensorflow as tf
import tf_slim as contrib_slim
from tensorflow.contrib import slim
from tensorflow.contrib.training import create_train_op

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_float('learning_rate', .01, 'Initial learning rate.')
tf.app.flags.DEFINE_float('clip_gradient_norm', 4., 'Each variable\'s gradient is clipped to this norm.')


def distort(image):
    image = tf.image.random_brightness(image, 32. / 255.)
    return tf.clip_by_value(image, 0.0, 1.0)


def main(_):
    with tf.Graph().as_default():
        tf.logging.set_verbosity(tf.logging.INFO)
        images, labels = load_batch(distort)
        logits, end_points = slim.nets.vgg.vgg_16(images, is_training=True)
        slim.losses.softmax_cross_entropy(logits, labels)
        total_loss = slim.losses.get_total_loss()
        optimizer = tf.train.RMSPropOptimizer(FLAGS.learning_rate, 0.9)
        train_op = slim.learning.create_train_op(
            total_loss,
            optimizer,
            summarize_gradients=True,
            clip_gradient_norm=FLAGS.clip_gradient_norm)
        slim.learning.train(train_op, logdir=FLAGS.train_dir, number_of_steps=100000)


def by_hand(loss, optimizer, multipliers):
    grads = optimizer.compute_gradients(loss)
    grads = slim.learning.multiply_gradients(grads, multipliers)
    grads = slim.learning.clip_gradient_norms(grads, 4.)
    return optimizer.apply_gradients(grads)


def later(loss, optimizer):
    first = contrib_slim.learning.create_train_op(loss, optimizer, clip_gradient_norm=1.)
    second = create_train_op(loss, optimizer, clip_gradient_norm=1.)
    return first, second


if __name__ == '__main__':
    tf.app.run()
