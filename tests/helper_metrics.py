"""What trec_eval calls the measures that both of us have."""

TREC_NAMES = {
    "recall@5": "recall_5",
    "precision@10": "P_10",
    "mrr": "recip_rank",
    "map": "map",
    "ndcg": "ndcg",
    "ndcg@10": "ndcg_cut_10",
    "hit_rate@5": "success_5",
    "r-precision": "Rprec",
    "map@10": "map_cut_10",
}
