import lib
from lib import several, spawned, starred, Trainer
CLIP = 0.25

lib.train(model, CLIP)
several(1.0)
several(clip=2.0)
starred(*args)
mp.spawn(spawned, nprocs=2)
trainer = Trainer(3.0)
trainer.step()
lib.partly()
lib.partly(1.0, 2.0)
