default_scope = 'mmdet'
default_hooks = dict(timer=dict(type='IterTimerHook'), logger=dict(type='LoggerHook', interval=50))
log_level = 'INFO'
train_pipeline = [dict(type='LoadImage'), dict(type='Resize'), dict(type='Flip'), dict(type='Color', level=10)]
train_dataloader = dict(batch_size=2, dataset=dict(type='CocoDataset', pipeline=train_pipeline))
