#: rule = "norm"
#: threshold = 1.0
#: family = "paddle"
import paddle

model = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 1))
groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
clip = paddle.nn.ClipGradByNorm(1.0)
optimizer = paddle.optimizer.SGD(0.1, parameters=groups, grad_clip=clip)
for _ in range(3):
    model(paddle.ones([8, 4])).pow(2).sum().backward()
    optimizer.step()
    optimizer.clear_grad()
