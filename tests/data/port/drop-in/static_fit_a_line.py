# -*- coding: UTF-8 -*-
import numpy as np
import paddle
import paddle.static as static
import unified_clip.paddle

paddle.enable_static()

main_program = static.Program()
startup_program = static.Program()

with static.program_guard(main_program, startup_program):
    x = static.data(name='x', shape=[None, 13], dtype='float32')
    y = static.data(name='y', shape=[None, 1], dtype='float32')
    hidden = static.nn.fc(x, size=32, activation='relu',
                          weight_attr=paddle.ParamAttr(name='w0', need_clip=False))
    predict = static.nn.fc(hidden, size=1)
    cost = paddle.nn.functional.square_error_cost(predict, y)
    avg_cost = paddle.mean(cost)

    clip = unified_clip.paddle.ClipGradByGlobalNorm(clip_norm=1.0)
    sgd = paddle.optimizer.SGD(learning_rate=.001, grad_clip=clip)
    sgd.minimize(avg_cost)

place = paddle.CPUPlace()
exe = static.Executor(place)
exe.run(startup_program)

for epoch in range(20):
    xs = np.random.rand(16, 13).astype('float32')
    ys = xs.sum(1, keepdims=True)
    loss, = exe.run(main_program, feed={'x': xs, 'y': ys}, fetch_list=[avg_cost])
    print(epoch, np.clip(loss, 0, 1e6))
