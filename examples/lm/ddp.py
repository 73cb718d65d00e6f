"""Train a character-level GPT on a novel: serial.py, ddp.py and parallel.py differ in a few lines."""

import torch
from rich.progress import Progress
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler

import gpt


def main() -> None:
    options = gpt.options(__doc__)
    torch.manual_seed(options.seed)
    train, validation, characters = gpt.read(options.size, options.windows)
    distributed.init_process_group("gloo")
    model = DistributedDataParallel(gpt.GPT(len(characters), options.size))
    with Progress(disable=distributed.get_rank() > 0) as progress:
        sampler = DistributedSampler(train, seed=options.seed, drop_last=True)
        share = options.batch // distributed.get_world_size()
        loader = DataLoader(train, batch_size=share, sampler=sampler, drop_last=True)
        optimizer = AdamW(gpt.groups(model), lr=options.lr)
        scheduler = LambdaLR(optimizer, gpt.warm_up_and_cosine(options.epochs * len(loader)))
        for epoch in progress.track(range(options.epochs)):
            sampler.set_epoch(epoch)
            for tokens, targets in loader:
                optimizer.zero_grad()
                gpt.loss_of(model(tokens), targets).backward()
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
            if distributed.get_rank() == 0:
                progress.print(
                    f"epoch {epoch + 1}: perplexity {gpt.perplexity(model.module, validation):.2f}"
                )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
