from __future__ import print_function

import six
import paddle.fluid as fluid
import paddle.fluid.layers as layers
import unified_clip.paddle

vocab_size, hidden_dim, max_grad_norm = 10000, 200, 5.0


def lm_model():
    words = fluid.data(name="src", shape=[None, 35], dtype="int64")
    label = fluid.data(name="tgt", shape=[None, 1], dtype="int64")
    emb = layers.embedding(words, size=[vocab_size, hidden_dim],
                           param_attr=fluid.ParamAttr(name="emb", gradient_clip=unified_clip.paddle.GradientClipByValue(max=1., min=-1.)))
    emb.error_clip = unified_clip.paddle.ErrorClipByValue(max=0.1)
    hidden = layers.fc(emb, size=hidden_dim * 4)
    out = layers.fc(hidden, size=vocab_size, act="softmax")
    return layers.mean(layers.cross_entropy(out, label))


def main():
    main_prog, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main_prog, startup):
        loss = lm_model()
        unified_clip.paddle.set_gradient_clip(
            clip=unified_clip.paddle.GradientClipByGlobalNorm(
                clip_norm=max_grad_norm))
        optimizer = fluid.optimizer.SGD(learning_rate=1.0)
        params_grads = optimizer.backward(loss)
        params_grads = unified_clip.paddle.append_gradient_clip_ops(params_grads)
        optimizer.apply_gradients(params_grads)

    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    for epoch in six.moves.range(13):
        for batch in reader():
            fetched, = exe.run(main_prog, feed=batch, fetch_list=[loss])
        print("epoch", epoch, "loss", fetched[0])
