import paddle
from paddle import ParamAttr, nn
import torch


class Tagger(nn.Layer):
    def __init__(self, vocab, dim, tags):
        super().__init__()
        # embeddings get no clip, they are sparse
        self.emb = nn.Embedding(vocab, dim, sparse=True, weight_attr=ParamAttr(
            initializer=nn.initializer.Uniform(-.1, .1),
            need_clip=False,
        ))
        self.rnn = nn.GRU(dim, dim)
        self.out = nn.Linear(dim, tags)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def main(loader, vocab, tags):
    model = Tagger(vocab, 128, tags)
    for p in model.out.parameters():
        p.need_clip = False
    optimizer = paddle.optimizer.Adam(
        2e-3,
        parameters=model.parameters(),
    )
    for words, labels in loader:
        loss = nn.functional.cross_entropy(model(words), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), .25)
        optimizer.step()
        optimizer.clear_grad()
