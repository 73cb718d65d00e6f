"""Train a character-level GPT on a novel: serial.py, ddp.py and parallel.py differ in a few lines."""

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

import gpt
import paceline


def main() -> None:
    options = gpt.options(__doc__)
    torch.manual_seed(options.seed)
    train, validation, characters = gpt.read(options.size, options.windows)
    model = gpt.GPT(len(characters), options.size)
    with paceline.session(strategy="sync") as ranks:
        loader = ranks.share(DataLoader(train, batch_size=options.batch, shuffle=True, drop_last=True))
        model, optimizer = ranks.attach(model, AdamW(gpt.groups(model), lr=options.lr))
        scheduler = LambdaLR(optimizer, gpt.warm_up_and_cosine(options.epochs * len(loader)))
        for _ in ranks.epochs(options.epochs):
            for tokens, targets in loader:
                optimizer.zero_grad()
                gpt.loss_of(model(tokens), targets).backward()
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
            ranks.validate(perplexity=lambda: gpt.perplexity(model, validation))


if __name__ == "__main__":
    main()
