"""Attention model for captions."""
import time

import tensorflow as tf
import unified_clip.tensorflow


class CaptionTrainer:
    def __init__(self, encoder, decoder, lr=1e-3, clip=5.0, log_every=100):
        self.encoder = encoder
        self.decoder = decoder
        self.optimizer = tf.keras.optimizers.Adam(lr)
        self.clip = clip
        self.log_every = log_every
        self.loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction='none')

    @property
    def variables(self):
        return self.encoder.trainable_variables + self.decoder.trainable_variables

    def loss_function(self, real, pred):
        mask = tf.cast(tf.math.logical_not(tf.math.equal(real, 0)), pred.dtype)
        return tf.reduce_mean(self.loss_object(real, pred) * mask)

    @tf.function(experimental_relax_shapes=True)
    def train_step(self, img_tensor, target):
        loss = 0.
        hidden = self.decoder.reset_state(batch_size=target.shape[0])
        with tf.GradientTape() as tape:
            features = self.encoder(img_tensor)
            for i in range(1, target.shape[1]):
                predictions, hidden, _ = self.decoder(target[:, i - 1:i], features, hidden)
                loss += self.loss_function(target[:, i], predictions)
        gradients = tape.gradient(loss, self.variables)
        gradients, global_norm = unified_clip.tensorflow.clip_by_global_norm(gradients, self.clip)
        self.optimizer.apply_gradients(zip(gradients, self.variables))
        return loss / int(target.shape[1]), global_norm

    def fit(self, dataset, epochs=20):
        for epoch in range(epochs):
            start = time.time()
            for batch, (img, target) in enumerate(dataset):
                loss, norm = self.train_step(img, target)
                if batch % self.log_every == 0:
                    print(f'Epoch {epoch + 1} Batch {batch} Loss {loss:.4f} Norm {norm:.2f}')
            print('Time taken for 1 epoch {} sec\n'.format(time.time() - start))
