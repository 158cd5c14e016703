"""spyreccl: collectives of torch.distributed on tensors of cards.

`registration` tells torch the name; `group` is what a process group calls, `checks` what is refused
there; `lanes` are the threads that do it, `collectives` and `messages` what they do; `calls` is
what ranks say of a call, `exchange` moves bytes between them, `shared` is the memory that these go
through; `reductions` compute on the card; `link` says how long it takes in card time.
"""
