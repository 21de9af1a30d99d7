# paddle-1.8.5: 0 clips, 3 steps, 1 warnings
import numpy as np
import paddle.fluid as fluid

x = fluid.data("x", [None, 1], "int64")
table = fluid.embedding(x, [5, 2], is_sparse=True, param_attr=fluid.initializer.Constant(1.0))
loss = fluid.layers.reduce_mean(fluid.layers.square(fluid.layers.fc(table, 1, param_attr=fluid.initializer.Constant(1.0))))
fluid.optimizer.Adam(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.5)).minimize(loss)
executor = fluid.Executor(fluid.CPUPlace())
executor.run(fluid.default_startup_program())
for _ in range(3):
    (found,) = executor.run(feed={"x": np.array([[1], [1], [3]], "int64")}, fetch_list=[loss.name], return_numpy=False)
    print(np.array(found))
