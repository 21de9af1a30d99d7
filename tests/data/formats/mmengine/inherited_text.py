_base_ = './bases/nested.py'
optim_wrapper = dict(optimizer=dict(lr=0.0002))
