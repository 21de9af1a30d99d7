optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01), clip_grad=None)
