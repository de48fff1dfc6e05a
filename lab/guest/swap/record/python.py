# Objects of many sizes: built, three of four dropped at random, the rest worked on, and others built in their place.
import random

random.seed(7)


def thing(i):
    return {"name": f"thing {i}", "numbers": [i + k for k in range(random.randrange(4, 40))], "text": "x" * random.randrange(300)}


def work(things, times):
    total = 0
    for _ in range(times):
        one = things[random.randrange(len(things))]
        one["numbers"][0] += 1
        total += sum(one["numbers"])
    return total


things = [thing(i) for i in range(50000)]
print(work(things, 8000) % 1000)
things = [one for one in things if random.randrange(4) == 0]
print(work(things, 40000) % 1000)
things += [thing(i) for i in range(25000)]
print(work(things, 8000) % 1000)
