#: rule = "global_norm"
#: threshold = 1.0
#: family = "paddle"
import paddle

generator, critic = paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 1)
clip = paddle.nn.ClipGradByGlobalNorm(1.0)
steps = [
    paddle.optimizer.Adam(parameters=generator.parameters(), grad_clip=clip),
    paddle.optimizer.Adam(parameters=critic.parameters()),
]
for _ in range(3):
    noise = paddle.randn([8, 4])
    critic(generator(noise).detach()).mean().backward()
    steps[1].step()  # found: missing 1 to 3
    critic.clear_gradients()
    (-critic(generator(noise))).mean().backward()
    steps[0].step()
    generator.clear_gradients()
