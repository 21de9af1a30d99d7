_base_ = ['bases/schedule_clip.py']
optim_wrapper = dict(_delete_=True, type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1))
