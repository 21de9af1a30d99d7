_base_ = ['mmdet::retinanet/retinanet_r50_fpn_1x_coco.py']
optim_wrapper = dict(clip_grad=dict(max_norm=35, norm_type=2))
