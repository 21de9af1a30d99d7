#: rule = "global_norm"
#: threshold = 1.0
#: exclude = ["*.bias"]
import paddle

from unified_clip import ClipConfig

model = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 1))
clip = ClipConfig(rule="global_norm", threshold=1.0, exclude=["*.bias"]).as_paddle(model)
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=clip)
for _ in range(3):
    model(paddle.ones([8, 4])).pow(2).sum().backward()
    optimizer.step()
    optimizer.clear_grad()
