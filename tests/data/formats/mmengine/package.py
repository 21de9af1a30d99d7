_base_ = 'mmdet::_base_/schedules/schedule_1x.py'
optim_wrapper = dict(optimizer=dict(lr=0.01))
