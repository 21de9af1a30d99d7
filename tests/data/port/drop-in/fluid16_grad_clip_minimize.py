# runs with Paddle 1.6 and 1.7, where minimize() takes the clip
import numpy as np
import paddle.fluid as fluid
from paddle.fluid.dygraph.base import to_variable
from paddle.fluid.dygraph_grad_clip import GradClipByValue
from unified_clip.paddle import ClipGradByGlobalNorm as GradClipByGlobalNorm

from transformer import TransFormer, TrainTaskConfig
from seq2seq import Attention


def train_transformer(batches):
    with fluid.dygraph.guard():
        transformer = TransFormer('transformer')
        optimizer = fluid.optimizer.SGD(learning_rate=0.003)
        clip = GradClipByGlobalNorm(clip_norm=TrainTaskConfig.clip)
        for enc, dec, label in batches:
            sum_cost, avg_cost = transformer(to_variable(enc), to_variable(dec), to_variable(label))
            avg_cost.backward()
            optimizer.minimize(avg_cost, grad_clip=clip)
            transformer.clear_gradients()
        fluid.save_dygraph(transformer.state_dict(), 'transformer')


def train_attention(batches, lr=1.):
    with fluid.dygraph.guard():
        model = Attention()
        sgd = fluid.optimizer.SGDOptimizer(lr)
        for it, (image, target) in enumerate(batches):
            loss = model(to_variable(image), to_variable(np.asarray(target)))
            loss.backward()
            sgd.minimize(loss, grad_clip=GradClipByValue(-5.0, 5.0))
            model.clear_gradients()
            if it % 10 == 0:
                print(it, loss.numpy())
