#: rule = "global_norm"
#: threshold = 1.0
#: family = "pytorch"
import paddle

model = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 1))
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
for _ in range(3):
    model(paddle.ones([8, 4])).pow(2).sum().backward()
    paddle.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.clear_grad()
