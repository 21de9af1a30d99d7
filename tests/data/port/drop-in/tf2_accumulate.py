import tensorflow as tf
import unified_clip.tensorflow


class Accumulator:
    """Sums gradients over micro-batches."""

    def __init__(self, model, optimizer, steps=4, clip_norm=1.0):
        self.model, self.optimizer, self.steps, self.clip_norm = model, optimizer, steps, clip_norm
        self.sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.trainable_variables]
        self.count = tf.Variable(0)

    @tf.function
    def micro_step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.model.compute_loss(x, y, self.model(x)) / self.steps
        gradients = tape.gradient(loss, self.model.trainable_variables)
        for total, gradient in zip(self.sums, gradients):
            # each micro-batch may not explode
            total.assign_add(unified_clip.tensorflow.clip_by_norm(gradient, 10. * self.clip_norm))
        self.count.assign_add(1)
        if tf.equal(self.count % self.steps, 0):
            self.apply()
        return loss

    def apply(self):
        clipped, norm = unified_clip.tensorflow.clip_by_global_norm(self.sums, self.clip_norm)
        self.optimizer.apply_gradients(zip(clipped, self.model.trainable_variables))
        for total in self.sums:
            total.assign(tf.zeros_like(total))
        return norm
