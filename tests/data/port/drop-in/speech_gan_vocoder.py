"""Trains a parallel WaveGAN."""
import argparse
from pathlib import Path

import paddle
import yaml
from paddle import nn
from paddle.optimizer import Adam
from paddle.optimizer.lr import StepDecay
from yacs.config import CfgNode

from models import Discriminator, Generator, stft_loss
import unified_clip.paddle


def train_sp(args, config):
    world_size = paddle.distributed.get_world_size()
    if world_size > 1:
        paddle.distributed.init_parallel_env()
    generator = Generator(**config["generator_params"])
    discriminator = Discriminator(**config["discriminator_params"])
    criterion = nn.MSELoss()

    lr_schedule_g = StepDecay(**config["generator_scheduler_params"])
    gradient_clip_g = unified_clip.paddle.ClipGradByGlobalNorm(config["generator_grad_norm"])
    optimizer_g = Adam(
        learning_rate=lr_schedule_g,
        grad_clip=gradient_clip_g,
        parameters=generator.parameters(),
        **config["generator_optimizer_params"])
    lr_schedule_d = StepDecay(**config["discriminator_scheduler_params"])
    gradient_clip_d = unified_clip.paddle.ClipGradByGlobalNorm(
        config["discriminator_grad_norm"])
    optimizer_d = Adam(
        learning_rate=lr_schedule_d, grad_clip=gradient_clip_d,
        parameters=discriminator.parameters(), **config["discriminator_optimizer_params"])
    print("optimizers done!")

    for iteration, (wav, mel) in enumerate(args.loader):
        # Generator
        wav_ = generator(mel)
        gen_loss = stft_loss(wav_, wav)
        if iteration > config.discriminator_train_start_steps:
            p_ = discriminator(wav_)
            gen_loss += config.lambda_adv * criterion(p_, paddle.ones_like(p_))
        optimizer_g.clear_grad()
        gen_loss.backward()
        optimizer_g.step()
        lr_schedule_g.step()

        # Discriminator
        if iteration > config.discriminator_train_start_steps:
            with paddle.no_grad():
                wav_ = generator(mel)
            p, p_ = discriminator(wav), discriminator(wav_.detach())
            loss = criterion(p, paddle.ones_like(p)) + criterion(p_, paddle.zeros_like(p_))
            optimizer_d.clear_grad()
            loss.backward()
            optimizer_d.step()
            lr_schedule_d.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    args = parser.parse_args()
    train_sp(args, CfgNode(yaml.safe_load(args.config.read_text())))
