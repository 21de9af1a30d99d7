# paddle-1.8.5: 4 clips, 4 steps, 0 warnings
# Both programs have the same names of variables, and one has a test program.
import numpy as np
import paddle.fluid as fluid

executor = fluid.Executor(fluid.CPUPlace())
for threshold in (1.0, 0.5):
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 2])
        start = fluid.initializer.Constant(1.0)
        loss = fluid.layers.reduce_mean(fluid.layers.square(fluid.layers.fc(x, 1, param_attr=start)))
        test = program.clone(for_test=True)
        clip = fluid.clip.GradientClipByGlobalNorm(threshold)
        decay = fluid.regularizer.L2Decay(0.5)
        fluid.optimizer.SGD(0.1, grad_clip=clip, regularization=decay).minimize(loss)
    executor.run(startup)
    for _ in range(2):
        feed = {"x": np.ones([3, 2], "float32")}
        print(executor.run(program, feed=feed, fetch_list=[loss]), executor.run(test, feed=feed, fetch_list=loss))
