# -*- coding: utf-8 -*-
import torch
import torch.nn as nn
from unified_clip.torch import clip_grad_norm_ as clip, clip_grad_value_
from tqdm import tqdm


class Trainer(object):
	def __init__(self, model, args):
		self.model = model
		self.args = args
		self.opt = torch.optim.Adam(model.parameters(), lr = args.lr)
		self.crit = nn.CrossEntropyLoss(ignore_index = 0)

	def epoch(self, loader):
		total = 0.
		bar = tqdm(loader)
		for i, (src, tgt) in enumerate(bar):
			self.opt.zero_grad()
			out = self.model(src, tgt[:, :-1])
			loss = self.crit(out.reshape(-1, out.size(-1)), tgt[:, 1:].reshape(-1))
			loss.backward()
			if self.args.clip_value:
				clip_grad_value_(self.model.parameters(), self.args.clip_value)
			bar.set_description(f"loss {loss.item():.3f} norm {clip(self.model.parameters(), self.args.clip):.3f}")
			self.opt.step()
			total += loss.item()
		return total / max(1, len(loader))

	def evaluate(self, loader):
		self.model.eval()
		with torch.no_grad():
			losses = [self.crit(self.model(s, t[:, :-1]).flatten(0, 1), t[:, 1:].flatten()) for s, t in loader]
		self.model.train()
		return torch.stack(losses).clip(max = 20.).exp().mean()	# perplexity, not a gradient
