import keras
import tensorflow as tf
from keras import ops
import unified_clip.torch


class ContrastiveModel(keras.Model):
    def __init__(self, encoder, temperature=0.1, max_norm=None, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.temperature = temperature
        self.max_norm = max_norm
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def contrastive_loss(self, a, b):
        a, b = ops.normalize(a), ops.normalize(b)
        similarity = ops.clip(ops.matmul(a, ops.transpose(b)), -1, 1) / self.temperature
        labels = ops.arange(ops.shape(a)[0])
        return keras.losses.sparse_categorical_crossentropy(labels, similarity, from_logits=True)

    def train_step(self, data):
        first, second = data
        with tf.GradientTape() as tape:
            loss = ops.mean(self.contrastive_loss(self.encoder(first), self.encoder(second)))
        self.optimizer.zero_grad()
        loss.backward()
        gradients = [variable.grad for variable in self.encoder.trainable_weights]
        if self.max_norm is not None:
            gradients, _ = unified_clip.torch.clip_by_global_norm(gradients, self.max_norm)
        for grad, variable in zip(gradients, self.encoder.trainable_weights):
            variable.grad = grad
        self.optimizer.step()
        self.loss_tracker.update_state(loss)
        return {m.name: m.result() for m in self.metrics}


model = ContrastiveModel(keras.applications.ResNet50(include_top=False, pooling="avg"), max_norm=1.0)
model.compile(optimizer=keras.optimizers.Lion(1e-4, clipnorm=None))
