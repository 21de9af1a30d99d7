# Faster R-CNN, schedule 1x
model = dict(
    type='FasterRCNN',
    backbone=dict(type='ResNet', depth=50, frozen_stages=1),
    neck=dict(type='FPN', num_outs=5),
)
dataset_type = 'CocoDataset'
data_root = 'data/coco/'
data = dict(
    samples_per_gpu=2,
    workers_per_gpu=2,
    train=dict(type=dataset_type, ann_file=data_root + 'annotations/train.json'),
)
optimizer = dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=0.0001)
optimizer_config = dict(grad_clip=dict(max_norm=35, error_if_nonfinite=True))
lr_config = dict(policy='step', warmup='linear', warmup_iters=500, step=[8, 11])
runner = dict(type='EpochBasedRunner', max_epochs=12)
checkpoint_config = dict(interval=1)
log_config = dict(interval=50, hooks=[dict(type='TextLoggerHook')])
