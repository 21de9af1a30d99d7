_base_ = ['bases/circle.py']
optim_wrapper = dict(type='OptimWrapper')
