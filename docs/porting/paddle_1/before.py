import numpy as np
import paddle.fluid as fluid
import paddle.fluid.core as core

place = core.CPUPlace()
prog = fluid.framework.Program()
startup_program = fluid.framework.Program()
with fluid.program_guard(main_program=prog, startup_program=startup_program):
    image = fluid.layers.data(name="x", shape=[784], dtype="float32")
    label = fluid.layers.data(name="y", shape=[1], dtype="int64")
    hidden1 = fluid.layers.fc(input=image, size=128, act="relu")
    hidden2 = fluid.layers.fc(input=hidden1, size=64, act="relu")
    predict = fluid.layers.fc(input=hidden2, size=10, act="softmax")
    cost = fluid.layers.cross_entropy(input=predict, label=label)
    avg_cost = fluid.layers.mean(cost)
prog_clip = prog.clone()
avg_cost_clip = prog_clip.block(0).var(avg_cost.name)
p_g = fluid.backward.append_backward(loss=avg_cost)
p_g_clip = fluid.backward.append_backward(loss=avg_cost_clip)
with fluid.program_guard(main_program=prog_clip, startup_program=startup_program):
    fluid.clip.set_gradient_clip(fluid.clip.GradientClipByNorm(clip_norm=0.1))
    p_g_clip = fluid.clip.append_gradient_clip_ops(p_g_clip)
grad_list = [elem[1] for elem in p_g]
grad_clip_list = [elem[1] for elem in p_g_clip]

exe = fluid.Executor(place)
exe.run(startup_program)
parameters = {each.name: np.array(fluid.global_scope().find_var(each.name).get_tensor()) for each, _ in p_g}
np.savez("weights.npz", **parameters)  # for the port

random = np.random.RandomState(0)
for count in range(5):
    data = {
        "x": random.rand(128, 784).astype("float32"),
        "y": random.randint(0, 10, (128, 1)).astype("int64"),
    }
    out = exe.run(prog, feed=data, fetch_list=grad_list)
    out_clip = exe.run(prog_clip, feed=data, fetch_list=grad_clip_list)
    print(f"count:{count}", [round(float(np.linalg.norm(gradient)), 3) for gradient in out_clip])
