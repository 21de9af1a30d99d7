import random
from collections import deque

import gym
import torch
import torch.optim as optim
from torch.nn import *
from torch.nn.utils import *

env = gym.make('LunarLander-v2')
net = Sequential(Linear(8, 64), ReLU(), Linear(64, 64), ReLU(), Linear(64, 4))
target = Sequential(Linear(8, 64), ReLU(), Linear(64, 64), ReLU(), Linear(64, 4))
target.load_state_dict(net.state_dict())
opt = optim.RMSprop(net.parameters(), lr=2.5e-4)
memory = deque(maxlen=100000)
loss_fn = SmoothL1Loss()

for episode in range(1000):
    state, done = env.reset(), False
    while not done:
        if random.random() < .1:
            action = env.action_space.sample()
        else:
            action = net(torch.as_tensor(state)).argmax().item()
        after, reward, done, _ = env.step(action)
        memory.append((state, action, reward, after, done)); state = after
        if len(memory) < 1000: continue
        s, a, r, n, d = zip(*random.sample(memory, 32))
        q = net(torch.tensor(s)).gather(1, torch.tensor(a).unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            y = torch.tensor(r) + .99 * target(torch.tensor(n)).max(1)[0] * (1 - torch.tensor(d).float())
        loss = loss_fn(q, y)
        opt.zero_grad()
        loss.backward()
        clip_grad_norm_(net.parameters(), 10)
        opt.step()
    if episode % 10 == 0: target.load_state_dict(net.state_dict())
