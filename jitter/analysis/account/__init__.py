"""The account of lost time: what each step loses to each rank and collective; the shares add up to its loss."""
