import itertools
import math

import pytest
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

from asyncrl.trainer.checkpoints.training_state import Box, SharedTensor, boxes_of_range

SHAPES = [(), (1,), (5,), (3, 4), (4, 1), (1, 5), (2, 3, 4), (1, 1, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_boxes_of_a_range_are_its_numbers_in_order(shape: tuple[int, ...]):
    count = math.prod(shape)
    whole = torch.arange(count).view(shape)
    for begin, end in itertools.combinations_with_replacement(range(count + 1), 2):
        found = []
        for offset, size in boxes_of_range(shape, begin, end):
            assert len(offset) == len(size) == len(shape)
            box = whole[tuple(slice(a, a + b) for a, b in zip(offset, size, strict=True))]
            assert tuple(box.shape) == size
            found += box.flatten().tolist()
        assert found == list(range(begin, end)), (begin, end)


def test_a_range_of_a_matrix_is_three_boxes_at_most():
    for begin, end in itertools.combinations(range(8 * 5 + 1), 2):
        assert len(list(boxes_of_range((8, 5), begin, end))) <= 3


def test_whole_rows_are_one_box():
    assert list(boxes_of_range((6, 4), 4, 20)) == [((1, 0), (4, 4))]


def test_a_host_copy_does_not_follow_the_tensor_and_the_next_one_takes_its_memory():
    numbers = torch.arange(6.0)
    shared = SharedTensor((2, 6))
    shared.add(Box((1, 0), numbers.view(1, 6)))
    copy = shared.host_copy(None)
    place = copy[torch.Size((1, 0))].data_ptr()
    numbers += 1
    assert copy[torch.Size((1, 0))].tolist() == [[0, 1, 2, 3, 4, 5]]
    again = shared.host_copy(copy)
    assert again[torch.Size((1, 0))].tolist() == [[1, 2, 3, 4, 5, 6]]
    assert again[torch.Size((1, 0))].data_ptr() == place


def test_what_is_written_names_the_whole_tensor_and_the_place_in_it():
    shared = SharedTensor((4, 6))
    shared.add(Box((1, 2), torch.zeros(1, 4, dtype=torch.bfloat16)))
    (item,) = shared.__create_write_items__("weight", shared)
    assert item.index == MetadataIndex("weight", torch.Size((1, 2)))
    assert item.tensor_data.size == (4, 6) and item.tensor_data.chunk.sizes == (1, 4)
    assert item.tensor_data.properties.dtype is torch.bfloat16
